"""What is built on partitions: each feature is a pure core, its records, and the ports that it needs."""
