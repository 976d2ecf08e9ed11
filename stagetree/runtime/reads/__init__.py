"""What a trainer reads besides its version: files, environment variables and packages."""
