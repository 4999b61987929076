package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/token"
)

// The version of the messages that this package writes. A higher minor version
// adds members that a reader may ignore; a higher major version changes the
// meaning of something and must not be read by old code.
const (
	Major = 1
	Minor = 0
)

// The kinds of message, the value of the member "type".
const (
	typeUsage = "usage"
	typeEvent = "event"
)

// Errors of Decode.
var (
	// ErrVersion: the message is of a newer major version. Reading on would lose
	// it, so a consumer stops here until it is upgraded.
	ErrVersion = errors.New("message of a newer major version")
	// ErrMalformed: the message can never be read, by any version.
	ErrMalformed = errors.New("malformed message")
)

// version is what every message begins with, quoted for JSON.
var version = strconv.Quote(fmt.Sprintf("%d.%d", Major, Minor))

// AppendRecord appends r as one JSON message without a line break. Its form is
// documented in docs/records.md.
func AppendRecord(dst []byte, r Record) []byte {
	dst = append(dst, `{"v":`...)
	dst = append(dst, version...)
	dst = append(dst, `,"type":"usage","token":`...)
	dst = appendString(dst, string(r.Token))
	dst = append(dst, `,"resource":`...)
	dst = appendString(dst, r.Resource)
	dst = appendInt(dst, `,"minute":`, r.Minute)
	dst = appendInt(dst, `,"admitted":`, r.Admitted)
	dst = appendInt(dst, `,"rejected":`, r.Rejected)
	dst = appendInt(dst, `,"refunded":`, r.Refunded)
	dst = appendInt(dst, `,"last":`, r.Last)
	return append(dst, '}')
}

func appendInt(dst []byte, name string, v int64) []byte {
	return strconv.AppendInt(append(dst, name...), v, 10)
}

// appendString quotes s for JSON; canonical tokens and resources need no escape.
func appendString(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(s) // a string always marshals
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// AppendEvent appends e as one JSON message without a line break. It fails only
// when Before or After is not JSON.
func AppendEvent(dst []byte, e Event) ([]byte, error) {
	data, err := json.Marshal(eventMessage{
		V: version[1 : len(version)-1], Type: typeEvent,
		ID: e.ID, Token: string(e.Token), At: e.At, Kind: e.Kind,
		Actor: e.Actor, Reason: e.Reason, Before: e.Before, After: e.After,
	})
	if err != nil {
		return dst, fmt.Errorf("encode event %q: %w", e.ID, err)
	}
	return append(dst, data...), nil
}

type eventMessage struct {
	V      string          `json:"v"`
	Type   string          `json:"type"`
	ID     string          `json:"id"`
	Token  string          `json:"token,omitempty"`
	At     int64           `json:"at_ms"`
	Kind   string          `json:"kind"`
	Actor  string          `json:"actor,omitempty"`
	Reason string          `json:"reason,omitempty"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// message has the members of both kinds, so that one pass reads either.
type message struct {
	eventMessage
	Resource string `json:"resource"`
	Minute   int64  `json:"minute"`
	Admitted int64  `json:"admitted"`
	Rejected int64  `json:"rejected"`
	Refunded int64  `json:"refunded"`
	Last     int64  `json:"last"`
}

// Decode reads one message and appends what it says to batch. Members that it
// does not know are ignored. The error wraps ErrVersion or ErrMalformed, and
// leaves batch as it was.
func Decode(data []byte, batch *Batch) error {
	var m message
	// The version comes first: a newer major may differ in the types of members.
	var head struct {
		V string `json:"v"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		if json.Unmarshal(data, &head) != nil {
			return fmt.Errorf("%w: %v", ErrMalformed, err)
		}
		if verr := checkVersion(head.V); verr != nil {
			return verr
		}
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	if err := checkVersion(m.V); err != nil {
		return err
	}
	switch m.Type {
	case typeUsage:
		r := Record{
			Key{token.ID(m.Token), m.Resource, m.Minute},
			Totals{m.Admitted, m.Rejected, m.Refunded, m.Last},
		}
		if err := r.check(); err != nil {
			return err
		}
		batch.Records = append(batch.Records, r)
	case typeEvent:
		if m.ID == "" || m.Kind == "" {
			return fmt.Errorf("%w: an event without id or kind", ErrMalformed)
		}
		batch.Events = append(batch.Events, Event{
			ID: m.ID, Token: token.ID(m.Token), At: m.At, Kind: m.Kind,
			Actor: m.Actor, Reason: m.Reason, Before: m.Before, After: m.After,
		})
	default:
		return fmt.Errorf("%w: type %.32q", ErrMalformed, m.Type)
	}
	return nil
}

func (r *Record) check() error {
	switch {
	case r.Minute < 0 || r.Admitted < 0 || r.Rejected < 0 || r.Refunded < 0 || r.Last < 0:
		return fmt.Errorf("%w: a negative figure in a usage record", ErrMalformed)
	case strings.IndexByte(r.Resource, 0) >= 0:
		return fmt.Errorf("%w: NUL in the resource of a usage record", ErrMalformed)
	}
	if _, err := token.FromTag(string(r.Token)); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	return nil
}

func checkVersion(v string) error {
	major, minor, ok := strings.Cut(v, ".")
	n, err := strconv.Atoi(major)
	if _, merr := strconv.Atoi(minor); !ok || err != nil || merr != nil || n < 1 {
		return fmt.Errorf("%w: version %.32q", ErrMalformed, v)
	}
	if n > Major {
		return fmt.Errorf("%w: it is %s, this program reads %d.x; upgrade the consumer", ErrVersion, v, Major)
	}
	return nil
}

// AppendLines appends every record and event of batch, one message a line, each
// line ended by a line break.
func AppendLines(dst []byte, batch Batch) ([]byte, error) {
	for _, r := range batch.Records {
		dst = append(AppendRecord(dst, r), '\n')
	}
	for _, e := range batch.Events {
		var err error
		if dst, err = AppendEvent(dst, e); err != nil {
			return dst, err
		}
		dst = append(dst, '\n')
	}
	return dst, nil
}
