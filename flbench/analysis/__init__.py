"""What finished runs say: methods in places, statistics over repetitions, and the report."""
