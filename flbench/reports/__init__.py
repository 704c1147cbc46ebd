"""Statistics, tables, figures and pages of reports."""
