package dashboard

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/history"
)

// spans are those that a page offers.
var spans = []struct{ Name, Words string }{
	{"1h", "hour"}, {"6h", "6 hours"}, {"24h", "24 hours"}, {"7d", "7 days"}, {"30d", "30 days"}, {"90d", "90 days"},
}

const (
	defaultSpan = "24h"
	maxColumns  = 120
	maxSpan     = 20 * 366 * 24 * time.Hour
)

// steps are the lengths of a chart's columns.
var steps = []time.Duration{
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 7 * 24 * time.Hour, 28 * 24 * time.Hour, 91 * 24 * time.Hour,
}

// span is the stretch of time that a page shows, always of whole steps.
type span struct {
	history.Span
	// Name is 24h and the like for the last 24 hours; "" when From and To were given.
	Name string
	// Until is now, or To when that is past: what a column after it would show
	// has not happened yet.
	Until time.Time
}

// badInput is an error of who made the URL; its text says what to mend.
type badInput string

func (e badInput) Error() string { return string(e) }

// parseSpan reads span, or from and to, out of a query.
func parseSpan(q url.Values, now time.Time, zone *time.Location) (span, error) {
	from, to := strings.TrimSpace(q.Get("from")), strings.TrimSpace(q.Get("to"))
	if from == "" && to == "" {
		name := q.Get("span")
		if name == "" {
			name = defaultSpan
		}
		length, err := parseLength(name)
		if err != nil {
			return span{}, err
		}
		s := span{Name: name, Until: now}
		s.Step = stepFor(length)
		// The current step is the last one, and as many as fit come before it.
		s.To = floor(now, s.Step).Add(s.Step)
		s.From = s.To.Add(-length.Truncate(s.Step))
		if length < s.Step {
			s.From = s.To.Add(-s.Step)
		}
		return s, nil
	}
	var s span
	var err error
	if s.From, err = parseTime("from", from, zone); err != nil {
		return span{}, err
	}
	if s.To, err = parseTime("to", to, zone); err != nil {
		return span{}, err
	}
	if !s.From.Before(s.To) {
		return span{}, badInput(fmt.Sprintf("from (%s) must be before to (%s).", from, to))
	}
	if s.To.Sub(s.From) > maxSpan || s.From.Unix() < 0 {
		return span{}, badInput("The span is too long: at most 20 years, not before 1970.")
	}
	s.Step = stepFor(s.To.Sub(s.From))
	s.From = floor(s.From, s.Step)
	if end := floor(s.To, s.Step); end.Before(s.To) {
		s.To = end.Add(s.Step)
	}
	s.Until = s.To
	if now.Before(s.Until) {
		s.Until = now
	}
	return s, nil
}

// floor returns the begin of t's step. Steps lie on multiples of their length
// since the epoch, as in the history.
func floor(t time.Time, step time.Duration) time.Time {
	sec := int64(step / time.Second)
	return time.Unix(t.Unix()/sec*sec, 0)
}

// before returns the span of equal length that ends where s begins.
func (s span) before() history.Span {
	return history.Span{From: s.From.Add(-s.To.Sub(s.From)), To: s.From, Step: s.Step}
}

// stepFor returns the shortest step that gives at most maxColumns columns.
func stepFor(length time.Duration) time.Duration {
	for _, step := range steps {
		if length <= maxColumns*step {
			return step
		}
	}
	return steps[len(steps)-1]
}

// parseLength parses 90m, 24h, 7d or 4w.
func parseLength(s string) (time.Duration, error) {
	wrong := badInput(fmt.Sprintf("span is %.20q, but must be a length such as 90m, 24h, 7d or 4w, at most 20 years.", s))
	if len(s) < 2 {
		return 0, wrong
	}
	n, err := strconv.ParseInt(s[:len(s)-1], 10, 32)
	if err != nil || n < 1 {
		return 0, wrong
	}
	unit, ok := map[byte]time.Duration{'m': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}[s[len(s)-1]]
	if !ok || n > int64(maxSpan/unit) {
		return 0, wrong
	}
	return time.Duration(n) * unit, nil
}

// inputLayout is what <input type="datetime-local"> sends: the clock in the page's zone.
const inputLayout = "2006-01-02T15:04"

func parseTime(name, s string, zone *time.Location) (time.Time, error) {
	for _, layout := range []string{inputLayout, inputLayout + ":05", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return t, nil
		}
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Time{}, badInput(fmt.Sprintf("%s is %.40q, but must be a time such as 2026-03-01T12:00 (in the page's time zone) or 2026-03-01T12:00:00Z.", name, s))
}
