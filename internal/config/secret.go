package config

import (
	"net/url"
	"strings"
)

const mask = "******"

// Secret is a value that is never printed: String and everything built on it
// show a mask. Convert it to string where it is used.
type Secret string

// String returns a mask, or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// SecretURL is an address that may carry a password, which is never printed.
type SecretURL string

// String returns the address with the password masked, in the query too.
func (s SecretURL) String() string {
	u, err := url.Parse(string(s))
	if err != nil {
		return mask // an address that cannot be parsed cannot be masked in part
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), mask)
	}
	query := u.Query()
	for key := range query {
		if lower := strings.ToLower(key); strings.Contains(lower, "password") || strings.Contains(lower, "secret") || strings.Contains(lower, "key") {
			query.Set(key, mask)
			u.RawQuery = query.Encode()
		}
	}
	return strings.ReplaceAll(u.String(), url.QueryEscape(mask), mask)
}

// MarshalText masks the secret in every encoding, logs included.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText masks the address in every encoding.
func (s SecretURL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
