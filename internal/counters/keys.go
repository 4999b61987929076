package counters

import (
	"strconv"
	"strings"

	"github.com/tallygate/tallygate/internal/token"
)

// Namespace is the first part of every hash tag. It holds no braces and no colon.
type Namespace string

// DefaultNamespace is the namespace unless configured otherwise.
const DefaultNamespace Namespace = "api"

// Usage is the key of the usage counter: string, admitted units of one token and
// resource in one epoch minute. It lives until the minute's end + grace.
//
//	{api:T}:29000000          the default resource
//	{api:T}:29000000:search   the resource search
func (ns Namespace) Usage(id token.ID, resource string, minute int64) string {
	return string(ns.appendUsage(nil, id, resource, minute))
}

// Rejected is the key beside the usage counter: string, rejected units. It lives
// as long as the usage counter.
//
//	{api:T}:29000000::rejected          the default resource
//	{api:T}:29000000:search:rejected    the resource search
func (ns Namespace) Rejected(id token.ID, resource string, minute int64) string {
	return string(ns.appendBeside(nil, id, resource, minute, "rejected"))
}

// Refunded is the key beside the usage counter: string, refunded units. It lives
// as long as the usage counter.
func (ns Namespace) Refunded(id token.ID, resource string, minute int64) string {
	return string(ns.appendBeside(nil, id, resource, minute, "refunded"))
}

// Foreign is the key that an application following the classic recipe counts on:
// string, units in that minute of the hour, 0 to 59. It lives 59 s past its last
// hit. Tallygate reads such keys and never writes them.
//
//	{api:T}:54
func (ns Namespace) Foreign(id token.ID, minuteOfHour int) string {
	return token.Tag(string(ns), id) + ":" + strconv.Itoa(minuteOfHour)
}

// Limit is the key of the state of a limit that is not the usage counter itself;
// start is the window's start in unix ms, below 0 for a limit whose state spans
// windows. Its type and TTL are the algorithm's, see decide.lua.
//
//	limit:{api:T}:daily:1767225600000
//	limit:{api:T}:burst
func (ns Namespace) Limit(id token.ID, limit string, start int64) string {
	return string(ns.appendLimit(nil, id, limit, start))
}

// Adjusted is the key that marks that some usage counter which is a limit has been
// adjusted: string, without value. It lives until the last of these minutes has
// ended. A standalone server has one for all tokens (id is ""), so that a batch
// looks once; on a cluster each token has its own.
//
//	limit:api:adjusted
//	limit:{api:T}:adjusted:
func (ns Namespace) Adjusted(id token.ID) string { return string(ns.appendAdjusted(nil, id)) }

// Adjustment is the key beside a usage counter that is a limit: string, units
// that the limit counts on top; below 0 after a refund, a grant or a reset. It
// lives as long as the window.
//
//	limit:{api:T}:29000000:search:adjusted
func (ns Namespace) Adjustment(id token.ID, resource string, minute int64) string {
	return string(ns.appendAdjustment(nil, id, resource, minute))
}

// Reservation is the key of a reservation: string, msgpack of its time in unix ms,
// its estimate, its end in unix ms and, once settled, the actual cost. It expires
// at its end.
//
//	reserve:{api:T}:<id>
func (ns Namespace) Reservation(id token.ID, name string) string {
	return string(ns.appendNamed(nil, "reserve:", id, name))
}

// Once is the key that remembers the name of an adjustment that was made: string,
// until when in unix ms. It lives for quota.RememberFor.
//
//	once:{api:T}:<id>
func (ns Namespace) Once(id token.ID, name string) string {
	return string(ns.appendNamed(nil, "once:", id, name))
}

func (ns Namespace) appendNamed(b []byte, kind string, id token.ID, name string) []byte {
	return append(ns.appendTag(append(b, kind...), id), name...)
}

func (ns Namespace) appendAdjusted(b []byte, id token.ID) []byte {
	if id == "" {
		return append(append(append(b, "limit:"...), ns...), ":adjusted"...)
	}
	b = append(b, "limit:"...)
	return append(ns.appendTag(b, id), "adjusted:"...)
}

func (ns Namespace) appendAdjustment(b []byte, id token.ID, resource string, minute int64) []byte {
	b = append(b, "limit:"...)
	return ns.appendBeside(b, id, resource, minute, "adjusted")
}

func (ns Namespace) appendTag(b []byte, id token.ID) []byte {
	b = append(b, '{')
	b = append(b, ns...)
	b = append(b, ':')
	b = append(b, id...)
	return append(b, '}', ':')
}

func (ns Namespace) appendUsage(b []byte, id token.ID, resource string, minute int64) []byte {
	b = strconv.AppendInt(ns.appendTag(b, id), minute, 10)
	if resource != "" {
		b = append(b, ':')
		b = append(b, resource...)
	}
	return b
}

func (ns Namespace) appendBeside(b []byte, id token.ID, resource string, minute int64, what string) []byte {
	b = strconv.AppendInt(ns.appendTag(b, id), minute, 10)
	b = append(b, ':')
	b = append(b, resource...)
	b = append(b, ':')
	return append(b, what...)
}

func (ns Namespace) appendLimit(b []byte, id token.ID, limit string, start int64) []byte {
	b = append(b, "limit:"...)
	b = append(ns.appendTag(b, id), limit...)
	if start >= 0 {
		b = append(b, ':')
		b = strconv.AppendInt(b, start, 10)
	}
	return b
}

// Kind is what a counter counts.
type Kind uint8

// The kinds of counters. The zero value is no counter.
const (
	Other    Kind = iota
	Admitted      // units of one epoch minute
	Rejected
	Refunded
	Foreign // admitted units that an application counted by the classic recipe
)

// Counter is what a counter's key says.
type Counter struct {
	Kind     Kind
	Token    token.ID
	Resource string // canonical; "" is the default resource, and Foreign's
	// Minute is the epoch minute; for Foreign the minute of the hour, 0 to 59.
	Minute int64
}

// maxMinuteDigits bounds the minute in a key; the year 10000 has 10 digits.
const maxMinuteDigits = 12

// ParseKey tells a counter from every other key by its shape alone; what is no
// counter has the kind Other. It is the inverse of Usage, Rejected, Refunded and
// Foreign, and accepts a leading zero in a foreign minute.
func (ns Namespace) ParseKey(key string) Counter {
	rest, ok := strings.CutPrefix(key, "{")
	if !ok {
		return Counter{}
	}
	if rest, ok = strings.CutPrefix(rest, string(ns)); !ok {
		return Counter{}
	}
	if rest, ok = strings.CutPrefix(rest, ":"); !ok {
		return Counter{}
	}
	tag, rest, ok := strings.Cut(rest, "}:")
	if !ok {
		return Counter{}
	}
	id, err := token.FromTag(tag)
	if err != nil {
		return Counter{}
	}
	digits, rest, more := strings.Cut(rest, ":")
	minute, kind := parseMinute(digits)
	c := Counter{Kind: kind, Token: id, Minute: minute}
	switch {
	case kind == Other || kind == Foreign && more:
		return Counter{}
	case !more:
		return c
	}
	resource, what, beside := strings.Cut(rest, ":")
	switch {
	case beside && what == "rejected":
		c.Kind = Rejected
	case beside && what == "refunded":
		c.Kind = Refunded
	case beside || resource == "":
		return Counter{}
	}
	if canonical, err := token.ParseResource(token.ResourceText(resource)); err != nil || canonical != resource {
		return Counter{}
	}
	c.Resource = resource
	return c
}

// parseMinute reads the minute of a key: of the hour with one or two digits (kind
// Foreign), of the epoch with more and no leading zero (kind Admitted).
func parseMinute(digits string) (int64, Kind) {
	if digits == "" || len(digits) > maxMinuteDigits {
		return 0, Other
	}
	var n int64
	for i := range len(digits) {
		d := digits[i] - '0'
		if d > 9 {
			return 0, Other
		}
		n = 10*n + int64(d)
	}
	switch {
	case len(digits) <= 2 && n < 60:
		return n, Foreign
	case digits[0] != '0' && n >= 60:
		return n, Admitted
	}
	return 0, Other
}

// ForeignMinute returns the epoch minute nearest to now (unix ms) whose minute of
// the hour is minuteOfHour; of two equally near the earlier one.
func ForeignMinute(minuteOfHour int, now int64) int64 {
	minute := now / 60_000
	ahead := (int64(minuteOfHour) - minute%60 + 60) % 60 // 0 to 59 minutes from now
	if ahead >= 30 {
		ahead -= 60
	}
	return minute + ahead
}
