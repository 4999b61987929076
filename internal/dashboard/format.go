package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"time"

	"github.com/tallygate/tallygate/internal/token"
)

// units writes a number with its thousands apart: 1,234,567.
func units(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// rate writes a number per second with three digits that matter.
func rate(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 0.001:
		return "< 0.001"
	case r < 1:
		return strconv.FormatFloat(r, 'f', 3, 64)
	case r < 10:
		return strconv.FormatFloat(r, 'f', 2, 64)
	case r < 100:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return units(int64(r + 0.5))
}

// share writes part/whole in percent, precise where it is small.
func share(part, whole int64) string {
	if whole == 0 || part == 0 {
		return "0 %"
	}
	p := 100 * float64(part) / float64(whole)
	switch {
	case p < 0.01:
		return "< 0.01 %"
	case p < 1:
		return fmt.Sprintf("%.2f %%", p)
	case part == whole:
		return "100 %"
	}
	return fmt.Sprintf("%.1f %%", min(p, 99.9))
}

// percentOf returns part/whole as SVG's attributes take it.
func percentOf(part, whole int64) string {
	if whole <= 0 || part <= 0 {
		return "0%"
	}
	return strconv.FormatFloat(min(100*float64(part)/float64(whole), 100), 'f', 2, 64) + "%"
}

// change compares a figure with that of the span before.
type change struct {
	Now, Before int64
	Words       string // how much more or less it is
	Up, Down    bool   // neither when that cannot be said
}

func changeOf(now, before int64) change {
	c := change{Now: now, Before: before}
	if before == 0 || now == before {
		return c
	}
	c.Up, c.Down = now > before, now < before
	p := math.Abs(100 * (float64(now) - float64(before)) / float64(before))
	switch {
	case p > 999:
		c.Words = fmt.Sprintf("%.0f×", float64(now)/float64(before))
	case p < 10:
		c.Words = fmt.Sprintf("%.1f %%", p)
	default:
		c.Words = fmt.Sprintf("%.0f %%", p)
	}
	return c
}

// length writes a step or a window: 1 min, 6 h, 1 day.
func length(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d == 0:
		return "0 s"
	case d%(7*day) == 0 && d > 7*day:
		return plural(int64(d/(7*day)), "week")
	case d%day == 0:
		return plural(int64(d/day), "day")
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}

func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return units(n) + " " + noun + "s"
}

// ago says how long ago t was.
func ago(now, t time.Time) string {
	d := now.Sub(t)
	switch {
	case d < 5*time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	}
	return plural(int64(d/(24*time.Hour)), "day") + " ago"
}

// resourceName is what a resource is called; the default one has no name.
func resourceName(canonical string) string {
	if canonical == "" {
		return "default"
	}
	return token.ResourceText(canonical)
}

// timeTag writes a time of unix seconds for people and machines.
func timeTag(r *request, unix int64, withAgo bool) template.HTML {
	if unix == 0 {
		return `<span class="none">never</span>`
	}
	t := time.Unix(unix, 0)
	shown, full := t.In(r.Zone).Format("2 Jan 2006, 15:04:05"), t.In(r.Zone).Format("Monday, 2 January 2006, 15:04:05 MST")
	if withAgo {
		shown = ago(r.Now, t)
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`,
		t.UTC().Format(time.RFC3339), template.HTMLEscapeString(full), template.HTMLEscapeString(shown)))
}
