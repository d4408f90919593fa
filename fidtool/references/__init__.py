"""Published statistics that papers compare with."""
