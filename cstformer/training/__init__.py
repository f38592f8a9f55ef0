"""Training: settings, disturbance, loss, the loop, resuming, several processes."""
