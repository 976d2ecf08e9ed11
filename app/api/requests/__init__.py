"""What comes in: who may ask, what is read with care, and what bodies say."""
