package enforcer

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// appendBody appends the JSON of a decision. It is written by hand because it is
// the hot path: encoding/json costs more than the decision. The token is never
// echoed; it may be a secret.
func appendBody(b []byte, status int, q Query, a Answer) []byte {
	b = append(b, '{')
	if !a.Allowed {
		b = appendProblem(b, status, q, a)
	}
	b = append(b, `"outcome":"`...)
	b = append(b, a.Outcome()...)
	b = append(b, `","policy":"`...)
	b = append(b, a.Rule.Policy...) // [a-z0-9-], as the names of limits
	b = append(b, `","resource":`...)
	b = appendString(b, token.ResourceText(q.Resource))
	b = append(b, `,"cost":`...)
	b = strconv.AppendInt(b, q.Cost, 10)
	b = append(b, `,"at_ms":`...)
	b = strconv.AppendInt(b, a.At, 10)
	b = append(b, `,"limits":[`...)
	for i, s := range a.Limits {
		if i > 0 {
			b = append(b, ',')
		}
		l := &a.Rule.Limits[i]
		b = append(b, `{"name":"`...)
		b = append(b, l.Name...)
		b = append(b, `","quota":`...)
		b = strconv.AppendInt(b, l.Quota, 10)
		b = append(b, `,"window_ms":`...)
		b = strconv.AppendInt(b, windowMs(l, a.At), 10)
		b = append(b, `,"remaining":`...)
		b = strconv.AppendInt(b, s.Remaining, 10)
		b = append(b, `,"reset_ms":`...)
		b = strconv.AppendInt(b, s.Reset.Milliseconds(), 10)
		b = append(b, `,"retry_after_ms":`...)
		if s.RetryAfter == quota.Never {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendInt(b, s.RetryAfter.Milliseconds(), 10)
		}
		if l.Shadow {
			b = append(b, `,"shadow":true`...)
		}
		b = append(b, '}')
	}
	return append(b, "]}\n"...)
}

// windowMs is the length of a limit's window; those of a calendar differ.
func windowMs(l *quota.Limit, at int64) int64 {
	if l.Algorithm == quota.CalendarWindow {
		start, end := l.WindowAt(at)
		return end - start
	}
	return l.Window.Milliseconds()
}

// appendProblem appends the members that make a rejection a problem (RFC 9457).
func appendProblem(b []byte, status int, q Query, a Answer) []byte {
	switch {
	case a.Rule.Blocked:
		b = append(b, `"title":"Blocked","detail":"The token or its policy is blocked.",`...)
	case a.RetryAfter == quota.Never:
		b = append(b, `"type":"`+typeQuotaExceeded+`","title":"Cost exceeds a quota","detail":`...)
		l := a.Rule.Limits[a.Violated]
		b = appendString(b, fmt.Sprintf("A cost of %d can never fit limit %s of %d units; split the request.", q.Cost, l.Name, l.Quota))
		b = append(b, ',')
	default:
		b = append(b, `"type":"`+typeQuotaExceeded+`","title":"Quota exceeded",`...)
	}
	b = append(b, `"status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"violated-policies":[`...)
	first := true
	for i, s := range a.Limits {
		if s.RetryAfter == 0 || a.Rule.Limits[i].Shadow {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, '"')
		b = append(b, a.Rule.Limits[i].Name...)
		b = append(b, '"')
	}
	b = append(b, `],"retry_after_ms":`...)
	if a.RetryAfter == quota.Never {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, a.RetryAfter.Milliseconds(), 10)
	}
	return append(b, ',')
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string always marshals
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
