"""What is generated of the Helm chart."""
