package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// Identify turns the text of a token into its ID; token.Parse is one.
type Identify func(text string) (token.ID, error)

// count says what a descriptor is counted as.
type count struct {
	token    token.ID
	resource string
	limits   []quota.Limit
}

// countAs returns what a descriptor is counted as under the limits of rl. trail
// are the nodes that it matched, empty when it brings its own limit.
func (d *domain) countAs(rl *rule, entries []*common.RateLimitDescriptor_Entry, trail []*node, identify Identify, scratch []byte) (count, []byte, error) {
	c := count{resource: d.resource, limits: rl.limits}
	if d.resourceKey != "" {
		if i := find(entries, d.resourceKey); i >= 0 {
			c.resource = resourceOf(entries[i].GetValue())
		}
	}
	for _, key := range d.tokenKeys {
		i := find(entries, key)
		if i < 0 || sharedAt(trail, i) {
			continue
		}
		id, err := identify(entries[i].GetValue())
		if err != nil {
			break // longer than a token may be: counted by its digest, as part of the whole
		}
		c.token = id
		c.limits, scratch = rl.beside(i, entries, trail, scratch)
		return c, scratch, nil
	}
	scratch = appendPath(scratch[:0], d.name, entries, trail)
	if len(scratch) > token.MaxText {
		scratch = digested(scratch)
	}
	var err error
	if c.token, err = identify(string(scratch)); err != nil {
		return c, scratch, err
	}
	return c, scratch, nil
}

// find returns the index of the first entry with a key and any value, -1 if there is none.
func find(entries []*common.RateLimitDescriptor_Entry, key string) int {
	for i, e := range entries {
		if e.GetKey() == key && e.GetValue() != "" {
			return i
		}
	}
	return -1
}

// sharedAt reports whether entry i is counted together with others that match its pattern.
func sharedAt(trail []*node, i int) bool {
	return i < len(trail) && trail[i].shared && trail[i].parts != nil
}

// valueAt returns the value that entry i is counted under.
func valueAt(entries []*common.RateLimitDescriptor_Entry, trail []*node, i int) string {
	if sharedAt(trail, i) {
		return trail[i].value
	}
	return entries[i].GetValue()
}

// appendPath appends domain~key~value~key~value…; a ~ within a part becomes %7E,
// so that two descriptors never look the same.
func appendPath(b []byte, domain string, entries []*common.RateLimitDescriptor_Entry, trail []*node) []byte {
	b = appendPart(b, domain)
	for i, e := range entries {
		b = appendPart(append(b, '~'), e.GetKey())
		b = appendPart(append(b, '~'), valueAt(entries, trail, i))
	}
	return b
}

func appendPart(b []byte, part string) []byte {
	for i := range len(part) {
		switch c := part[i]; c {
		case '~':
			b = append(b, "%7E"...)
		case '%':
			b = append(b, "%25"...)
		case 0: // no token holds it
			b = append(b, "%00"...)
		default:
			b = append(b, c)
		}
	}
	return b
}

// digested shortens a text that is too long for a token or a resource: its
// beginning, and a digest of all of it. No other text looks like that, since a
// percent sign in a part is never followed by an s.
func digested(text []byte) []byte {
	const head = 48 // bytes, so that 48 + 8 + 64 fit a resource of 128
	sum := sha256.Sum256(text)
	cut := min(head, len(text))
	for cut > 0 && cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut--
	}
	short := append(make([]byte, 0, token.MaxResource), text[:cut]...)
	return hex.AppendEncode(append(short, "%sha256:"...), sum[:])
}

// resourceOf returns the canonical resource of a name, whatever it is.
func resourceOf(name string) string {
	resource, err := token.ParseResource(name)
	if err != nil {
		resource, _ = token.ParseResource(string(digested(appendPart(nil, name)))) // short and free of NUL
	}
	return resource
}

// maxPerValue bounds how many sets of values a rule remembers the limits of.
const maxPerValue = 4096

// beside returns the limits of a descriptor that is counted under the value of
// its entry at: their names tell it from the token's other descriptors. Limits of
// one name are the same slice as long as they are remembered, so that requests
// for them are recognised as equal.
func (rl *rule) beside(at int, entries []*common.RateLimitDescriptor_Entry, trail []*node, scratch []byte) ([]quota.Limit, []byte) {
	if len(rl.limits) == 0 {
		return nil, scratch
	}
	scratch = appendPart(scratch[:0], rl.domain)
	for i, e := range entries {
		scratch = appendPart(append(scratch, '~'), e.GetKey())
		if i != at {
			scratch = appendPart(append(scratch, '~'), valueAt(entries, trail, i))
		}
	}
	sum := xxhash.Sum64(scratch)
	if known, ok := rl.perValue.Load(sum); ok {
		return known.([]quota.Limit), scratch
	}
	l := rl.limits[0]
	l.Name = fmt.Sprintf("%s-%016x", l.Name, sum)
	l.Resources = nil // the token's other descriptors count the same usage: a key of its own
	limits := []quota.Limit{l}
	if rl.perValueSize.Add(1) > maxPerValue {
		rl.perValueSize.Add(-1)
		return limits, scratch
	}
	known, _ := rl.perValue.LoadOrStore(sum, limits)
	return known.([]quota.Limit), scratch
}
