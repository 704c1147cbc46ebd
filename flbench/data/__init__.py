"""Data sets, their partition over clients, and the federation that the clients train on."""
