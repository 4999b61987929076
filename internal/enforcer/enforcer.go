// Package enforcer answers whether a request may pass.
//
//	query    token, resource, cost, policy: what a client asks
//	rule     the limits of a policy that cover a resource, found without allocation
//	answer   admitted or rejected, per limit what remains and when to come back
//
// A worked example: policy free allows 60 units per minute, token T has used 59.
//
//	POST /v1/decide {"token":"T","policy":"free"}    200 admitted  remaining 0
//	POST /v1/decide {"token":"T","policy":"free"}    429 rejected  Retry-After: seconds to the next minute
package enforcer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// Store decides one request against the shared counters. It is called by many
// goroutines at once and gathers their calls into batches by itself. When the
// counters cannot be asked in time, the result carries an error, and the request
// may or may not have been counted.
type Store interface {
	Decide(ctx context.Context, request quota.Request) quota.Result
}

// Enforcer decides queries by policy. It is safe for concurrent use; make it with New.
type Enforcer struct {
	store    Store
	settings *settings // nil: nothing is set for any token
	policies atomic.Pointer[Policies]
	timeout  time.Duration
	metrics  metrics

	olderHeaders string

	admitted, rejected, failed atomic.Int64 // units
}

// Options of New.
type Options struct {
	// Timeout bounds one decision, waiting included, overriding the default 1s.
	// After it the client is told that the service is unavailable.
	Timeout time.Duration
	// Settings are what administrators set for tokens; nil means that they cannot.
	Settings Settings
	// OlderHeaders adds headers of an older style, XRateLimit or ThreeRateLimit.
	OlderHeaders string
	// Metrics is where metrics are registered; nil registers them nowhere.
	Metrics prometheus.Registerer
}

// New returns an enforcer that decides by policies in store.
func New(store Store, policies *Policies, o Options) *Enforcer {
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	e := &Enforcer{store: store, timeout: o.Timeout, olderHeaders: o.OlderHeaders, metrics: newMetrics(o.Metrics)}
	e.policies.Store(policies)
	if o.Settings != nil {
		e.settings = newSettings(o.Settings)
	}
	return e
}

// Run follows changes of tokens' settings until ctx ends.
func (e *Enforcer) Run(ctx context.Context) error {
	if e.settings == nil {
		<-ctx.Done()
		return nil
	}
	e.settings.source.Watch(ctx, e.settings.forget, e.settings.forgetAll)
	return nil
}

// Policies returns the policies that hold now.
func (e *Enforcer) Policies() *Policies { return e.policies.Load() }

// SetPolicies puts policies into force, for every decision that begins afterwards.
func (e *Enforcer) SetPolicies(policies *Policies) { e.policies.Store(policies) }

// Query asks whether Token may use Cost units of Resource. Token and Resource are canonical.
type Query struct {
	Token    token.ID
	Resource string
	Cost     int64  // 0 to quota.MaxCost; 0 is a peek
	Policy   string // "" is the default policy
}

// Answer is the decision on a query and the rule that it was made by.
type Answer struct {
	quota.Result
	Rule *Rule
}

// Decide answers a query. The error of an unknown policy wraps ErrUnknownPolicy;
// it is returned apart from the result's own error, which says that the store
// gave no answer.
func (e *Enforcer) Decide(ctx context.Context, q Query) (Answer, error) {
	rule, err := e.policies.Load().Find(q.Policy, q.Resource)
	if err != nil {
		return Answer{}, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	var result quota.Result
	if rule, err = e.assigned(ctx, q, rule); err != nil {
		result.Err = err
	} else {
		result = e.store.Decide(ctx, quota.Request{
			Token: q.Token, Resource: q.Resource, Cost: q.Cost, Limits: rule.Limits, Blocked: rule.Blocked,
		})
	}
	outcome := result.Outcome()
	switch outcome {
	case quota.Admitted:
		e.admitted.Add(q.Cost)
	case quota.Rejected:
		e.rejected.Add(q.Cost)
	case quota.Failed:
		e.failed.Add(q.Cost)
	}
	if !errors.Is(ctx.Err(), context.Canceled) { // a client that left says nothing about us
		e.metrics.observe(rule.Policy, outcome, q.Cost, time.Since(began))
	}
	return Answer{Result: result, Rule: rule}, nil
}

// assigned returns the rule that holds for q's token: what an administrator has
// set wins over what the request asks for. The rule is never nil.
func (e *Enforcer) assigned(ctx context.Context, q Query, rule *Rule) (*Rule, error) {
	if e.settings == nil {
		return rule, nil
	}
	set, err := e.settings.get(ctx, q.Token)
	if err != nil {
		return rule, err
	}
	if set.conf.Policy != "" && set.conf.Policy != rule.Policy {
		other, err := e.policies.Load().Find(set.conf.Policy, q.Resource)
		if err == nil {
			rule = other
		} else { // the policy is gone from the configuration, and the token must not go unchecked
			e.metrics.orphans.Inc()
		}
	}
	return set.apply(rule), nil
}

// Units are what an enforcer was asked for, by outcome. Failed units may have been
// counted nevertheless.
type Units struct{ Admitted, Rejected, Failed int64 }

// Units returns the units of all decisions since e was made.
func (e *Enforcer) Units() Units {
	return Units{Admitted: e.admitted.Load(), Rejected: e.rejected.Load(), Failed: e.failed.Load()}
}
