"""What the redis store consists of: the client, the formats, blobs, lists and notifications."""
