package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// Compile returns the limit in the form in which it is decided, its resources
// canonical and sorted. The error joins all that makes no sense.
func (l Limit) Compile() (quota.Limit, error) {
	compiled := quota.Limit{
		Name: l.Name, Quota: l.Quota, Window: l.Window, Shadow: l.Shadow, FromFirst: l.FromFirst, Precision: l.Precision,
		MinInterval: l.MinInterval, CountRejected: l.CountRejected, Burst: l.Burst,
	}
	var problems []error
	if l.Algorithm != "" {
		var ok bool
		if compiled.Algorithm, ok = quota.ParseAlgorithm(l.Algorithm); !ok {
			problems = append(problems, fmt.Errorf("algorithm %q is not one of: %s", l.Algorithm, strings.Join(quota.Algorithms(), ", ")))
		}
	}
	if l.Calendar != (Calendar{}) {
		var err error
		if compiled.Calendar, err = l.Calendar.compile(); err != nil {
			problems = append(problems, fmt.Errorf("calendar: %w", err))
		}
	}
	for _, name := range l.Resources {
		resource, err := parseResource(name)
		if err != nil {
			problems = append(problems, fmt.Errorf("resources: %w", err))
		}
		compiled.Resources = append(compiled.Resources, resource)
	}
	slices.Sort(compiled.Resources)
	compiled.Resources = slices.Compact(compiled.Resources)
	return compiled, errors.Join(append(problems, each(compiled.Validate())...)...)
}

func (c Calendar) compile() (*quota.Calendar, error) {
	o := quota.CalendarOptions{Unit: c.Unit, Day: c.Day}
	var err error
	if o.Zone, err = time.LoadLocation(c.Zone); err != nil {
		return nil, fmt.Errorf("zone: %w; name one of the IANA database, for example Europe/Vienna", err)
	}
	if c.Weekday != "" {
		i := slices.IndexFunc(weekdays, func(d time.Weekday) bool { return strings.EqualFold(d.String(), c.Weekday) })
		if i < 0 {
			return nil, fmt.Errorf("weekday %q is not a day such as monday", c.Weekday)
		}
		o.Weekday = &weekdays[i]
	}
	for month := time.January; c.Month != "" && o.Month == 0; month++ {
		switch {
		case month > time.December:
			return nil, fmt.Errorf("month %q is not a month such as january", c.Month)
		case strings.EqualFold(month.String(), c.Month):
			o.Month = month
		}
	}
	return quota.NewCalendar(o)
}

var weekdays = []time.Weekday{time.Sunday, time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday, time.Saturday}

// parseResource returns the canonical form of a resource or of a pattern of
// resources, in which an asterisk stands for any characters, also none. No
// canonical resource holds an asterisk: it would be encoded.
func parseResource(name string) (string, error) {
	parts := strings.Split(name, "*")
	for i, part := range parts {
		canonical, err := token.ParseResource(part)
		if err != nil {
			return "", err
		}
		parts[i] = canonical
	}
	return strings.Join(parts, "*"), nil
}

// IsGlob reports whether a compiled resource is a pattern.
func IsGlob(resource string) bool { return strings.Contains(resource, "*") }

// MatchGlob reports whether a canonical resource matches a pattern.
func MatchGlob(pattern, resource string) bool {
	before, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == resource
	}
	resource, ok := strings.CutPrefix(resource, before)
	if !ok {
		return false
	}
	for {
		part, next, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(resource, part)
		}
		// The leftmost match leaves most to what follows.
		i := strings.Index(resource, part)
		if i < 0 {
			return false
		}
		resource, rest = resource[i+len(part):], next
	}
}
