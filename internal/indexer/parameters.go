package indexer

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

// parameterError is a parameter that the client must change.
type parameterError struct {
	name string
	err  error
}

func (e *parameterError) Error() string { return "parameter " + e.name + ": " + e.err.Error() }
func (e *parameterError) Unwrap() error { return e.err }

func badParameter(name string, err error) error { return &parameterError{name, err} }

// values are a request's query parameters.
type values struct{ url.Values }

// parameters returns the query parameters, and refuses those that are not
// allowed: a misspelt filter must not answer a different question.
func parameters(r *http.Request, allowed ...string) (values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return values{}, badParameter("query", errors.New("it is not percent-encoded as a URL's query must be"))
	}
	for name, all := range q {
		if !slices.Contains(allowed, name) {
			if len(allowed) == 0 {
				return values{}, badParameter(name, errors.New("there are none here"))
			}
			return values{}, badParameter(name, fmt.Errorf("there is no such parameter; there are %s", strings.Join(allowed, ", ")))
		}
		if len(all) > 1 && name != "resource" {
			return values{}, badParameter(name, errors.New("give it once"))
		}
	}
	return values{q}, nil
}

func (q values) number(name string, missing, lowest, highest int) (int, error) {
	if !q.Has(name) {
		return missing, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < lowest || n > highest {
		return 0, badParameter(name, fmt.Errorf("%.32q is not a whole number from %d to %d", q.Get(name), lowest, highest))
	}
	return n, nil
}

func (q values) time(name string, missing time.Time) (time.Time, error) {
	if !q.Has(name) {
		return missing, nil
	}
	t, err := parseTime(q.Get(name))
	if err != nil {
		return t, badParameter(name, err)
	}
	return t, nil
}

// parseTime parses RFC 3339 or unix seconds.
func parseTime(s string) (time.Time, error) {
	if seconds, err := strconv.ParseInt(s, 10, 64); err == nil && seconds >= 0 && seconds < 1<<40 {
		return time.Unix(seconds, 0).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.UTC(), nil
	}
	return time.Time{}, fmt.Errorf("%.40q is no time; write 2026-01-31T09:00:00Z or unix seconds", s)
}

func (q values) duration(name string, missing time.Duration) (time.Duration, error) {
	if !q.Has(name) {
		return missing, nil
	}
	d, err := parseDuration(q.Get(name))
	if err != nil {
		return d, badParameter(name, err)
	}
	return d, nil
}

// parseDuration parses what time.ParseDuration does, and whole days: 30s, 1h30m, 7d.
func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= 36500 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%.32q is no length of time; write 5m, 1h or 7d", s)
	}
	return d, nil
}

// resources returns the canonical form of all values; an empty one is the
// default resource.
func (q values) resources(name string) ([]string, error) {
	var all []string
	for _, text := range q.Values[name] {
		resource, err := token.ParseResource(text)
		if err != nil {
			return nil, badParameter(name, err)
		}
		all = append(all, resource)
	}
	return all, nil
}

// span returns the time that from and to, or since and to, name: an hour up to
// now unless they say otherwise.
func (q values) span(now time.Time) (from, to time.Time, err error) {
	if q.Has("from") && q.Has("since") {
		return from, to, badParameter("since", errors.New("give either from or since"))
	}
	since, err := q.duration("since", time.Hour)
	if err != nil {
		return from, to, err
	}
	if to, err = q.time("to", now); err != nil {
		return from, to, err
	}
	from, err = q.time("from", to.Add(-since))
	return from, to, err
}

// query parses a parameter in the query language; absent asks for all tokens.
func (q values) query(name string) (query.Query, error) {
	parsed, err := query.Parse(q.Get(name))
	if err == nil {
		return parsed, nil
	}
	var wrong *query.Error
	if errors.As(err, &wrong) {
		return parsed, badParameter(name, errors.New(wrong.Error()+"\n"+wrong.Caret()))
	}
	return parsed, badParameter(name, err)
}
