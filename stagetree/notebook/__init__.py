"""How a notebook shows a study: tables, a cell that is redrawn while the study runs, and what a name shows."""
