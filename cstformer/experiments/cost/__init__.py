"""What training costs."""
