"""One runnable file for each service under load: ours, and the bare ones beside them."""
