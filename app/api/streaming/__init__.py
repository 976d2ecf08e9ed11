"""What happens: one look at the log, and one reading of each study, for all who follow."""
