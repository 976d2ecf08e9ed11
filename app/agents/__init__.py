"""Tools for agents, by the Model Context Protocol: `stagetree mcp` serves them over stdio, the API at `/mcp`.

They reach studies by the REST client alone, so the API decides about scopes, projects, budgets and refusals. `serving`
lists them.
"""
