package enforcer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// maxBody is the largest body of a query, in bytes: every field at its longest, escaped.
const maxBody = 8 << 10

// badInput is an input that cannot be understood: which field, and what to do.
type badInput struct{ field, detail string }

func (b *badInput) Error() string { return b.field + ": " + b.detail }

func bad(field, format string, args ...any) *badInput {
	return &badInput{field, fmt.Sprintf(format, args...)}
}

// object reads one JSON object from r strictly: value is called for each member
// and reads it from d; unknown members, members that stand twice and anything
// after the object are refused. Names are compared exactly.
func object(r io.Reader, known []string, value func(d *json.Decoder, name string) error) error {
	d := json.NewDecoder(r)
	opening, err := d.Token()
	if err != nil {
		return malformed(err)
	}
	if opening != json.Delim('{') {
		return bad("body", "is not a JSON object; send {\"token\":\"…\"}")
	}
	var seen uint64
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return malformed(err)
		}
		name, _ := key.(string)
		i := slices.Index(known, name)
		switch {
		case i < 0:
			return bad(fmt.Sprintf("%.64s", name), "is not known here; the members are: %v", known)
		case seen&(1<<i) != 0:
			return bad(name, "stands twice; send it once")
		}
		seen |= 1 << i
		if err := value(d, name); err != nil {
			return member(name, err)
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return malformed(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return bad("body", "goes on after the JSON object; send one object only")
	}
	return nil
}

// member turns the error of decoding one member into one for the client.
func member(name string, err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Type.Kind().String() == "int64":
		return bad(name, "is %s; send a whole number of at most 2^63-1", wrong.Value)
	case errors.As(err, &wrong):
		return bad(name, "is of type %s; send a %s", wrong.Value, wrong.Type)
	}
	return malformed(err)
}

func malformed(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return bad("body", "has more than %d bytes; send only the query", large.Limit)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return bad("body", "ends before its JSON object does; send {\"token\":\"…\"}")
	}
	return bad("body", "is not valid JSON: %v", err)
}

var queryMembers = []string{"token", "resource", "cost", "policy"}

// decodeQuery reads the body of POST /v1/decide.
func decodeQuery(r io.Reader) (Query, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return Query{}, malformed(err)
	}
	if !utf8.Valid(body) { // encoding/json would replace what is wrong, and two tokens could become one
		return Query{}, bad("body", "is not valid UTF-8")
	}
	var identity, resource string
	q := Query{Cost: 1}
	err = object(bytes.NewReader(body), queryMembers, func(d *json.Decoder, name string) error {
		switch name {
		case "token":
			return d.Decode(&identity)
		case "resource":
			return d.Decode(&resource)
		case "cost":
			return d.Decode(&q.Cost)
		}
		return d.Decode(&q.Policy)
	})
	if err != nil {
		return Query{}, err
	}
	if q.Token, err = token.Parse(identity); err != nil {
		return Query{}, bad("token", "%v", err)
	}
	if q.Resource, err = token.ParseResource(resource); err != nil {
		return Query{}, bad("resource", "%v", err)
	}
	if q.Cost < 0 || q.Cost > quota.MaxCost {
		return Query{}, bad("cost", "is %d; send 0 (a peek) to %d units", q.Cost, int64(quota.MaxCost))
	}
	return q, nil
}
