"""Deploy trained weights: the gate that decides whether weights may go live, and the deployers that ship them."""
