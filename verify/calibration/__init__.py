"""How far honest and faulty subjects are from their budgets, over thousands of random cases."""
