"""What tests of several modules share. A helper of one test module stands beside it."""
