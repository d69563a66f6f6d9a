"""The built-in deployers, one module per kind or per group of related kinds."""
