package config

import (
	"slices"

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
		if resource, err := token.ParseResource(name); err == nil { // validated
			compiled.Resources = append(compiled.Resources, resource)
		}
	}
	slices.Sort(compiled.Resources)
	compiled.Resources = slices.Compact(compiled.Resources)
	return compiled
}
