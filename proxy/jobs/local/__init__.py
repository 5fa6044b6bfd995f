"""What the port's methods do over tables in this process: shared by the memory and the sqlite store."""
