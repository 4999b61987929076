package config

import (
	"slices"
	"strings"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// algorithms maps the words of the file to those of package quota.
var algorithms = map[string]quota.Algorithm{
	"fixed_window": quota.FixedWindow,
}

// Compile returns the limit in the form in which it is decided, its resources
// canonical and sorted. The limit has been validated.
func (l Limit) Compile() quota.Limit {
	compiled := quota.Limit{Name: l.Name, Algorithm: algorithms[l.Algorithm], Quota: l.Quota, Window: l.Window}
	for _, name := range l.Resources {
		if resource, err := parseResource(name); err == nil { // validated
			compiled.Resources = append(compiled.Resources, resource)
		}
	}
	slices.Sort(compiled.Resources)
	compiled.Resources = slices.Compact(compiled.Resources)
	return compiled
}

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
