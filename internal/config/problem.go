package config

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Line int    // in the file; 0 when it does not stand there
	Key  string // its path, for example policies.free.limits[0].quota, or the environment variable
	Text string // what is wrong and what to do
}

// String returns line, key and text in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	b.WriteString(p.Text)
	return b.String()
}

// Problems is the error of a configuration that is refused.
type Problems []Problem

// Error lists all problems, one per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n  ")
}

// sorted orders problems by line, those outside the file last.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		switch {
		case a.Line == b.Line:
			return 0
		case a.Line == 0 || (b.Line != 0 && a.Line > b.Line):
			return 1
		}
		return -1
	})
	return p
}

// suggestion names the known key that was probably meant, or all of them.
func suggestion(key string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(key, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %s?", best)
	}
	slices.Sort(known)
	return "; known here: " + strings.Join(known, ", ")
}

// distance is the Levenshtein distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := previous
			if a[i] != b[j] {
				cost++
			}
			previous = row[j+1]
			row[j+1] = min(cost, previous+1, row[j]+1)
		}
	}
	return row[len(b)]
}
