"""Fields of the Navier–Stokes equation between given frames."""
