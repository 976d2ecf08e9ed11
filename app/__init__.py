"""The service: domain and scheduling are pure; events, workers and api are the shells around them."""
