package enforcer

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// LiveLimit is a limit of a token and how far it is.
type LiveLimit struct {
	quota.Limit
	quota.Status
	WindowMs int64 // length of the window that holds now
}

// Live returns the state of every limit of a token that c is set for, of those
// for some resources too. It consumes nothing.
func (e *Enforcer) Live(ctx context.Context, id token.ID, c *conf.Conf) ([]LiveLimit, error) {
	policies := e.policies.Load()
	name := c.Policy
	if _, ok := policies.byName[name]; !ok {
		name = policies.byDefault
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	var live []LiveLimit
	for _, limit := range policies.byName[name].limits {
		if own, ok := c.Quotas[limit.Name]; ok {
			limit.Quota = own
		}
		resource := ""
		if len(limit.Resources) > 0 && !config.IsGlob(limit.Resources[0]) {
			resource = limit.Resources[0] // the one whose usage counter may be the limit's count
		}
		result := e.store.Decide(ctx, quota.Request{Token: id, Resource: resource, Limits: []quota.Limit{limit}})
		if result.Err != nil {
			return nil, fmt.Errorf("read limit %s: %w", limit.Name, result.Err)
		}
		live = append(live, LiveLimit{limit, result.Limits[0], windowMs(&limit, result.At)})
	}
	return live, nil
}

// LimitNames returns the names of all limits of all policies, sorted.
func (p *Policies) LimitNames() []string {
	names := map[string]bool{}
	for _, policy := range p.byName {
		for _, limit := range policy.limits {
			names[limit.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
