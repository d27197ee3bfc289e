"""ATen nodes become loop bodies, views and extern calls."""
