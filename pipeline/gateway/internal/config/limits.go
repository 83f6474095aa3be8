package config

// SizeLimit is one of a request's body, with its key in the server's configuration.
type SizeLimit struct {
	Key   string
	Bytes int64
}

// MessageLimit is that of every body.
func (c *Config) MessageLimit() SizeLimit { return SizeLimit{"max_message_bytes", c.MaxMessageBytes} }

// JSONLimit is that of the JSON of an inference, packed and unpacked.
func (c *Config) JSONLimit() SizeLimit {
	if c.MaxJSONBytes < c.MaxMessageBytes {
		return SizeLimit{"max_json_bytes", c.MaxJSONBytes}
	}
	return c.MessageLimit()
}
