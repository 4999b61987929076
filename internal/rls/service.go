package rls

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// Store decides requests against the shared counters. It is called by many
// goroutines at once and gathers their calls by itself.
type Store interface {
	Decide(ctx context.Context, request quota.Request) quota.Result
	// DecideAll decides several in one call; results[i] answers requests[i]. It
	// keeps nothing of requests once it has returned.
	DecideAll(ctx context.Context, requests []quota.Request) []quota.Result
	// Adjust gives back what was taken. Its error wraps quota.ErrTooLate when there
	// is nothing to give back.
	Adjust(ctx context.Context, j quota.Adjustment) error
}

// Options of a Service. The zero value is valid.
type Options struct {
	// ShadowMode lets every call pass, whatever its descriptors' outcomes.
	ShadowMode bool
	// QuotaMode treats every rule as if it had quota_mode.
	QuotaMode bool
	// Headers are the names of the headers that a gateway adds to its answers;
	// a nil pointer, the default, adds none.
	Headers *HeaderNames
	// DynamicMetadata tells the gateway what was asked, and the metadata of the
	// rules that let it pass.
	DynamicMetadata bool
	// NearLimit is the used share of a limit from which hits count as near it,
	// overriding the default 0.8.
	NearLimit float64
	// Timeout bounds one call that brings no deadline, overriding the default 1s.
	Timeout time.Duration
	// Identify overrides the default token.Parse.
	Identify Identify
	// Metrics is where metrics are registered; nil registers them nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Service answers ShouldRateLimit. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer

	rules   func() *Rules
	store   Store
	o       Options
	metrics *metrics
	plans   sync.Pool // of *plan

	callOK, callOver, callFailed prometheus.Observer
}

// New returns a service that decides in store by what rules returns at each call.
func New(rules func() *Rules, store Store, o Options) *Service {
	if o.NearLimit <= 0 {
		o.NearLimit = 0.8
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.Identify == nil {
		o.Identify = token.Parse
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{rules: rules, store: store, o: o, metrics: newMetrics(o.Metrics)}
	s.plans.New = func() any { return new(plan) }
	s.callOK = s.metrics.calls.WithLabelValues(string(quota.Admitted))
	s.callOver = s.metrics.calls.WithLabelValues(string(quota.Rejected))
	s.callFailed = s.metrics.calls.WithLabelValues(string(quota.Failed))
	return s
}

// Errors that a gateway's configuration leads to; a gateway that gets them sees
// no verdict and does as it is told for failures.
var (
	errDomain      = status.Error(codes.InvalidArgument, "the domain is empty; name one in the gateway's rate limit configuration")
	errDescriptors = status.Error(codes.InvalidArgument, "there are no descriptors; the gateway's rate limit actions produced none")
	errUnit        = status.Error(codes.InvalidArgument, "a descriptor's limit has no unit, or one that is not known; use second to year")
	errStore       = status.Error(codes.Unavailable, "the counters cannot be reached, so nothing was decided")
)

// ShouldRateLimit decides every descriptor of a request. It implements
// envoy.service.ratelimit.v3.RateLimitService.
func (s *Service) ShouldRateLimit(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	began := time.Now()
	response, err := s.decide(ctx, request)
	took := time.Since(began).Seconds()
	switch {
	case err != nil:
		s.callFailed.Observe(took)
	case response.OverallCode == pb.RateLimitResponse_OVER_LIMIT:
		s.callOver.Observe(took)
	default:
		s.callOK.Observe(took)
	}
	return response, err
}

func (s *Service) decide(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	switch {
	case request.GetDomain() == "":
		return nil, errDomain
	case len(request.GetDescriptors()) == 0:
		return nil, errDescriptors
	}
	p := s.plans.Get().(*plan)
	defer p.release(s)
	if err := p.make(s, request); err != nil {
		return nil, err
	}
	if err := p.refund(ctx, s); err != nil {
		return nil, err
	}
	if err := p.ask(ctx, s); err != nil {
		return nil, err
	}
	return s.answer(request, p), nil
}

// refund gives back the hits of descriptors that are negative, of this minute;
// what remains then is looked at like any other peek.
func (p *plan) refund(ctx context.Context, s *Service) error {
	for i := range p.asked {
		a := &p.asked[i]
		if a.back == 0 || a.rule == nil || a.rule.blocked {
			continue
		}
		err := s.store.Adjust(ctx, quota.Adjustment{
			Kind: quota.Refund, Token: a.as.token, Resource: a.as.resource, Units: a.back, Limits: a.as.limits,
		})
		if err != nil && !errors.Is(err, quota.ErrTooLate) {
			s.o.Log.Debug("no refund", "error", err)
			return errStore
		}
	}
	return nil
}

// asked is what a plan knows of one descriptor.
type asked struct {
	rule    *rule // nil when nothing limits it
	counts  *counts
	hits    int64 // units
	back    int64 // units that are given back; then hits is 0
	request int   // index of what decides it, -1 when nothing does
	limit   int   // index of its limit there
	// replaced says that another descriptor's rule takes this one's place.
	replaced bool
	// spoilt says that it is only looked at, since what it goes together with is refused.
	spoilt bool
	as     count
}

// plan is one call on its way: what its descriptors are counted as, and what the
// store is asked. It is used again for other calls.
type plan struct {
	asked    []asked
	requests []quota.Request
	results  []quota.Result
	one      [1]quota.Result
	scratch  []byte
	trail    []*node
}

func (p *plan) release(s *Service) {
	clear(p.asked)
	clear(p.requests)
	clear(p.trail[:cap(p.trail)])
	p.results, p.one[0] = nil, quota.Result{}
	s.plans.Put(p)
}

// make finds the rule of each descriptor and what the store is to be asked.
func (p *plan) make(s *Service, request *pb.RateLimitRequest) error {
	p.asked, p.requests = p.asked[:0], p.requests[:0]
	d := s.rules().domains[request.GetDomain()]
	replaced := false
	for _, descriptor := range request.GetDescriptors() {
		a := asked{request: -1, hits: hitsOf(request, descriptor)}
		if descriptor.GetIsNegativeHits() {
			a.hits, a.back = 0, a.hits
		}
		if d != nil {
			var err error
			if a.rule, err = p.ruleOf(d, descriptor); err != nil {
				return err
			}
		}
		if a.rule == nil {
			s.metrics.unmatched.Inc()
		} else {
			replaced = replaced || len(a.rule.replaces) > 0
			a.counts = s.metrics.of(a.rule, descriptor.GetEntries(), p.trail)
			var err error
			if a.as, p.scratch, err = d.countAs(a.rule, descriptor.GetEntries(), p.trail, s.o.Identify, p.scratch); err != nil {
				return status.Error(codes.Internal, "a descriptor cannot be counted: "+err.Error())
			}
		}
		p.asked = append(p.asked, a)
	}
	if replaced {
		p.replace()
	}
	for i := range p.asked {
		p.request(d, i, s.o)
	}
	if d != nil && d.atomic {
		p.spoil()
	}
	return nil
}

// spoil has those only looked at that are asked all or nothing together with a
// limit of nothing.
func (p *plan) spoil() {
	for i := range p.asked {
		blocked := &p.asked[i]
		if blocked.request < 0 || !p.requests[blocked.request].Blocked || blocked.rule.shadow {
			continue
		}
		for j := range p.asked {
			if a := &p.asked[j]; a.request >= 0 && a.as.token == blocked.as.token && a.hits == blocked.hits && !p.requests[a.request].Blocked {
				a.spoilt = true
				p.requests[a.request].Cost = 0
			}
		}
	}
}

// ruleOf returns the rule of a descriptor, which may bring one of its own.
func (p *plan) ruleOf(d *domain, descriptor *common.RateLimitDescriptor) (*rule, error) {
	var rl *rule
	if own := descriptor.GetLimit(); own != nil {
		p.trail = p.trail[:0]
		unit := unitName(pb.RateLimitResponse_RateLimit_Unit(own.GetUnit()))
		if unit == "" {
			return nil, errUnit
		}
		rl = &rule{
			domain: d.name, path: d.name + ".(override)",
			limits:  []quota.Limit{newLimit(unit, 1, own.GetRequestsPerUnit(), d.resource)},
			blocked: own.GetRequestsPerUnit() == 0,
			answer:  &pb.RateLimitResponse_RateLimit{RequestsPerUnit: own.GetRequestsPerUnit(), Unit: pb.RateLimitResponse_RateLimit_Unit(own.GetUnit())},
		}
		return rl, nil
	}
	rl, p.scratch, p.trail = d.match(descriptor.GetEntries(), p.scratch, p.trail)
	return rl, nil
}

// maxHits is more than any limit of the format, so that larger ones differ in nothing.
const maxHits = math.MaxUint32 + 1

// hitsOf returns the units that a descriptor asks for.
func hitsOf(request *pb.RateLimitRequest, descriptor *common.RateLimitDescriptor) int64 {
	if own := descriptor.GetHitsAddend(); own != nil {
		return int64(min(own.GetValue(), maxHits))
	}
	return int64(max(1, request.GetHitsAddend()))
}

// replace takes the rules away that others of the same request replace.
func (p *plan) replace() {
	for i := range p.asked {
		a := &p.asked[i]
		if a.rule == nil || a.rule.name == "" || a.rule.unlimited {
			continue
		}
		for j := range p.asked {
			if other := p.asked[j].rule; other != nil && slices.Contains(other.replaces, a.rule.name) {
				a.replaced = true
				break
			}
		}
	}
	for i := range p.asked {
		if a := &p.asked[i]; a.replaced {
			a.rule = nil
		}
	}
}

// request adds what decides descriptor i to what the store is asked.
func (p *plan) request(d *domain, i int, o Options) {
	a := &p.asked[i]
	if a.rule == nil || (a.rule.unlimited && len(d.tokenKeys) == 0) {
		return // counted nowhere
	}
	alone := !d.atomic || a.rule.blocked || a.rule.unlimited || a.rule.shadow || a.rule.quotaMode || o.ShadowMode || o.QuotaMode
	if !alone {
		for j := range p.asked[:i] {
			other := &p.asked[j]
			if other.request < 0 || other.rule.blocked || other.rule.unlimited || other.rule.shadow || other.rule.quotaMode ||
				other.as.token != a.as.token || other.hits != a.hits {
				continue
			}
			r := &p.requests[other.request]
			a.request, a.limit = other.request, len(r.Limits)
			r.Limits = append(r.Limits[:len(r.Limits):len(r.Limits)], a.as.limits...)
			return
		}
	}
	a.request = len(p.requests)
	p.requests = append(p.requests, quota.Request{
		Token: a.as.token, Resource: a.as.resource, Cost: a.hits, Limits: a.as.limits,
		// Several hits tell what has been used (gateways look first, and report when
		// the answer is done): they count even where they do not fit, or a limit
		// that is almost used up would never be.
		Overdraft: a.hits > 1 && !d.atomic,
	})
	if a.rule.blocked { // a limit of nothing is none for the store; looking is allowed all the same
		r := &p.requests[a.request]
		r.Limits, r.Blocked = nil, a.hits > 0
	}
}

// ask has the store decide.
func (p *plan) ask(ctx context.Context, s *Service) error {
	if len(p.requests) == 0 {
		return nil
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.o.Timeout)
		defer cancel()
	}
	if len(p.requests) == 1 {
		p.one[0] = s.store.Decide(ctx, p.requests[0])
		p.results = p.one[:]
	} else {
		p.results = s.store.DecideAll(ctx, p.requests)
	}
	for i := range p.asked {
		a := &p.asked[i]
		if a.request < 0 || a.rule.unlimited {
			continue
		}
		if err := p.results[a.request].Err; err != nil {
			if !errors.Is(err, context.Canceled) {
				s.o.Log.Debug("no decision", "error", err)
			}
			return errStore
		}
	}
	return nil
}

// answered holds a response and its parts, so that they are one allocation.
type answered struct {
	response pb.RateLimitResponse
	statuses [2]pb.RateLimitResponse_DescriptorStatus
	resets   [2]durationpb.Duration
	list     [2]*pb.RateLimitResponse_DescriptorStatus
}

func (s *Service) answer(request *pb.RateLimitRequest, p *plan) *pb.RateLimitResponse {
	made := new(answered)
	list, statuses, resets := made.list[:0], made.statuses[:], made.resets[:]
	if n := len(p.asked); n > len(statuses) {
		list = make([]*pb.RateLimitResponse_DescriptorStatus, 0, n)
		statuses = make([]pb.RateLimitResponse_DescriptorStatus, n)
		resets = make([]durationpb.Duration, n)
	}
	var v verdict
	for i := range p.asked {
		st := &statuses[i]
		s.status(st, &resets[i], p, i)
		v.add(st, s.o.QuotaMode || (p.asked[i].rule != nil && p.asked[i].rule.quotaMode && !p.asked[i].rule.unlimited))
		list = append(list, st)
	}
	response := &made.response
	response.Statuses = list
	response.OverallCode = v.code()
	if s.o.ShadowMode {
		response.OverallCode = pb.RateLimitResponse_OK
	}
	if s.o.Headers != nil && v.closest != nil {
		response.ResponseHeadersToAdd = s.o.Headers.values(v.closest)
	}
	if s.o.DynamicMetadata {
		response.DynamicMetadata = dynamicMetadata(request, p.asked, list)
	}
	return response
}

// status fills the status of descriptor i.
func (s *Service) status(st *pb.RateLimitResponse_DescriptorStatus, reset *durationpb.Duration, p *plan, i int) {
	a := &p.asked[i]
	st.Code = pb.RateLimitResponse_OK
	switch {
	case a.rule == nil:
		return
	case a.rule.unlimited:
		st.LimitRemaining = math.MaxUint32
		a.counts.admitted.Add(float64(a.hits))
		return
	}
	decision := &p.results[a.request].Decision
	limit := &a.as.limits[0]
	over := !decision.Allowed
	var remaining int64
	if a.limit < len(decision.Limits) {
		remaining = decision.Limits[a.limit].Remaining
		over = decision.Limits[a.limit].RetryAfter > 0
	}
	st.CurrentLimit = a.rule.answer
	st.LimitRemaining = uint32(min(remaining, math.MaxUint32))
	// Whole seconds, rounded up: gateways cut fractions off.
	reset.Seconds = (limit.WindowEnd(decision.At) - decision.At + 999) / 1000
	st.DurationUntilReset = reset
	switch {
	case !over && decision.Allowed && !a.spoilt:
		a.counts.admitted.Add(float64(a.hits))
		if float64(remaining) < float64(limit.Quota)*(1-s.o.NearLimit) {
			a.counts.near.Add(float64(a.hits))
		}
	case a.rule.shadow || s.o.ShadowMode:
		a.counts.shadowed.Add(float64(a.hits))
	default: // also what had room, but was asked all or nothing together with what had not
		a.counts.rejected.Add(float64(a.hits))
	}
	if over && !a.rule.shadow {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
	}
}

// verdict gathers what the statuses of a call amount to.
type verdict struct {
	over               bool // one that is not of quota mode
	quotas, quotasOver int
	closest            *pb.RateLimitResponse_DescriptorStatus // to its limit
	closestOver        bool
}

func (v *verdict) add(st *pb.RateLimitResponse_DescriptorStatus, quotaMode bool) {
	isOver := st.Code == pb.RateLimitResponse_OVER_LIMIT
	if quotaMode {
		v.quotas++
	}
	switch {
	case isOver && quotaMode:
		v.quotasOver++
	case isOver:
		v.over = true
	}
	refuses := isOver && !quotaMode
	if st.CurrentLimit != nil && (v.closest == nil || (refuses && !v.closestOver) || (refuses == v.closestOver && st.LimitRemaining < v.closest.LimitRemaining)) {
		v.closest, v.closestOver = st, refuses
	}
}

// code is OVER_LIMIT when a descriptor is over its limit, those of quota mode
// only if all of them are.
func (v *verdict) code() pb.RateLimitResponse_Code {
	if v.over || (v.quotas > 0 && v.quotas == v.quotasOver) {
		return pb.RateLimitResponse_OVER_LIMIT
	}
	return pb.RateLimitResponse_OK
}
