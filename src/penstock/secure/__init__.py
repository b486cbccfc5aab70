"""What makes a secured cluster from nothing: an authority, certificates, credentials and settings, in one directory."""
