"""`kvtwin size`: from its flags to a sizing, and to words."""
