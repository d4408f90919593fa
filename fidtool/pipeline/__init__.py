"""What one run does, in this order: open its sets, measure them, compare them."""
