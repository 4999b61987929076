// Package token names the callers whose usage is counted.
//
// A token's text is whatever a caller presents: an API key, a user name, an IP
// address. Its ID is the form in which the text travels through keys, records
// and tables: characters outside [A-Za-z0-9._~:@-] are percent-encoded, so that
// no text can break out of the hash tag that keeps a token's keys together.
//
//	text  Jane {admin}
//	ID    Jane%20%7Badmin%7D
//	tag   {api:Jane%20%7Badmin%7D}
//
// Everything in this package is a pure function and safe for concurrent use.
package token

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxText is the longest token text that is accepted, in bytes.
const MaxText = 256

// MaxResource is the longest resource name that is accepted, in bytes.
const MaxResource = 128

// Errors of Parse, ParseResource and FromTag; they are wrapped with what was wrong.
var (
	ErrToken    = errors.New("invalid token")
	ErrResource = errors.New("invalid resource")
)

// ID is a token's canonical form. It is never empty, holds no braces, and is
// injective: two texts have the same ID only if they are equal.
type ID string

// Parse returns the ID of a token's text. It refuses an empty text, one longer
// than MaxText bytes, and one that is not valid UTF-8 or contains NUL (no SQL
// text column holds it). The error wraps ErrToken.
func Parse(text string) (ID, error) {
	switch {
	case text == "":
		return "", fmt.Errorf("%w: it is empty; send the caller's API key, user or address", ErrToken)
	case len(text) > MaxText:
		return "", fmt.Errorf("%w: it has %d bytes, at most %d are allowed; send a digest of it instead", ErrToken, len(text), MaxText)
	case !utf8.ValidString(text):
		return "", fmt.Errorf("%w: it is not valid UTF-8", ErrToken)
	case strings.IndexByte(text, 0) >= 0:
		return "", fmt.Errorf("%w: it contains a NUL byte", ErrToken)
	}
	return ID(encode(text, false)), nil
}

// FromTag returns the ID that stands in a hash tag found in Redis. A tag that
// Tallygate did not write (an application that follows the classic recipe puts
// its keys there as they are) is taken literally, so that what is kept beside
// the counter lands in the counter's slot. The error wraps ErrToken.
func FromTag(tag string) (ID, error) {
	if tag == "" || len(tag) > 3*MaxText || !utf8.ValidString(tag) || strings.ContainsAny(tag, "{}\x00") {
		return "", fmt.Errorf("%w: hash tag %.64q cannot be a token", ErrToken, tag)
	}
	return ID(tag), nil
}

// Text returns the text that id was made of.
func (id ID) Text() string { return decode(string(id)) }

// ParseResource returns the canonical form of a resource's name, in which colons
// are encoded too, since they separate the parts of a key. The empty resource is
// the default one and is valid. The error wraps ErrResource.
func ParseResource(name string) (string, error) {
	switch {
	case len(name) > MaxResource:
		return "", fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrResource, len(name), MaxResource)
	case !utf8.ValidString(name):
		return "", fmt.Errorf("%w: it is not valid UTF-8", ErrResource)
	case strings.IndexByte(name, 0) >= 0:
		return "", fmt.Errorf("%w: it contains a NUL byte", ErrResource)
	}
	return encode(name, true), nil
}

// ResourceText returns the name that a canonical resource was made of.
func ResourceText(resource string) string { return decode(resource) }

// Tag returns the hash tag that every key of id begins or is joined with,
// braces included: {api:T}. The namespace is "api" unless configured otherwise.
func Tag(namespace string, id ID) string {
	return "{" + namespace + ":" + string(id) + "}"
}

const upperHex = "0123456789ABCDEF"

// plain reports whether c stands for itself in an ID.
func plain(c byte, encodeColon bool) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	case c == '.', c == '_', c == '~', c == '@', c == '-':
		return true
	}
	return c == ':' && !encodeColon
}

func encode(s string, encodeColon bool) string {
	i := 0
	for i < len(s) && plain(s[i], encodeColon) {
		i++
	}
	if i == len(s) {
		return s // the common case: no copy
	}
	var b strings.Builder
	b.Grow(len(s) + 8)
	b.WriteString(s[:i])
	for ; i < len(s); i++ {
		if c := s[i]; plain(c, encodeColon) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String()
}

// decode undoes encode; a percent sign that begins no pair of hex digits stands
// for itself, as it may in a foreign tag.
func decode(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := strings.IndexByte(upperHex, s[i+1]), strings.IndexByte(upperHex, s[i+2])
			if hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}
