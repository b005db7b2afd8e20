"""Whether packed examples depend on their neighbours, measured from outside: for stacks that cannot be inspected."""
