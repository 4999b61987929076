package enforcer

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/token"
)

// Settings are what administrators set for tokens, see conf.Store.
type Settings interface {
	Get(ctx context.Context, ids []token.ID) ([]conf.Conf, error)
	Watch(ctx context.Context, changed func(token.ID), lost func())
}

const (
	// settingsAge bounds how long a change that nobody told us of (the connection
	// over which we are told was down) goes unnoticed. Those that we are told of
	// take effect at once.
	settingsAge = 10 * time.Second
	// settingsTokens bounds how many tokens' settings are remembered.
	settingsTokens = 1 << 17
	settingsShards = 64
	settingsBatch  = 512 // tokens asked for in one call
)

// settings remembers the settings of tokens that were asked for lately, those
// without any too. It is safe for concurrent use.
type settings struct {
	source Settings
	seed   maphash.Seed
	shards [settingsShards]settingsShard

	mu      sync.Mutex
	waiting map[token.ID]*settingsCall
	asking  bool
}

type settingsShard struct {
	mu      sync.RWMutex
	entries map[token.ID]*assigned
	changes int64 // grows whenever something is forgotten
}

// settingsCall is one token that is being asked for, by any number of callers.
type settingsCall struct {
	done    chan struct{}
	changes int64 // of the shard, at the latest before it is asked for
	result  *assigned
	err     error
}

// assigned is what is set for one token, and the rules that follow from it.
type assigned struct {
	conf  conf.Conf
	until time.Time
	rules sync.Map // *Rule of a policy → *Rule of this token
}

func newSettings(source Settings) *settings {
	s := &settings{source: source, seed: maphash.MakeSeed(), waiting: map[token.ID]*settingsCall{}}
	for i := range s.shards {
		s.shards[i].entries = map[token.ID]*assigned{}
	}
	return s
}

func (s *settings) shard(id token.ID) *settingsShard {
	return &s.shards[maphash.String(s.seed, string(id))%settingsShards]
}

// get returns what is set for a token. When it cannot be asked, what was known
// before is better than nothing.
func (s *settings) get(ctx context.Context, id token.ID) (*assigned, error) {
	sh := s.shard(id)
	sh.mu.RLock()
	known, changes := sh.entries[id], sh.changes
	sh.mu.RUnlock()
	if known != nil && time.Now().Before(known.until) {
		return known, nil
	}
	call := s.join(id, changes)
	select {
	case <-call.done:
		if call.err == nil {
			return call.result, nil
		}
		if known != nil {
			return known, nil
		}
		return nil, call.err
	case <-ctx.Done():
		if known != nil {
			return known, nil
		}
		return nil, context.Cause(ctx)
	}
}

// join asks for a token, together with whoever else asks meanwhile.
func (s *settings) join(id token.ID, changes int64) *settingsCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Whoever still waits has not been asked for: the answer will be newer than
	// every change so far.
	if call := s.waiting[id]; call != nil {
		call.changes = max(call.changes, changes)
		return call
	}
	call := &settingsCall{done: make(chan struct{}), changes: changes}
	s.waiting[id] = call
	if !s.asking {
		s.asking = true
		go s.ask()
	}
	return call
}

// ask asks for all tokens that wait, batch by batch, until none does.
func (s *settings) ask() {
	for {
		s.mu.Lock()
		ids := make([]token.ID, 0, min(len(s.waiting), settingsBatch))
		calls := make([]*settingsCall, 0, cap(ids))
		for id, call := range s.waiting {
			if len(ids) == settingsBatch {
				break
			}
			ids, calls = append(ids, id), append(calls, call)
			delete(s.waiting, id)
		}
		s.asking = len(ids) > 0
		s.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		// Nobody's own context: callers come and go, the answer serves all of them.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		confs, err := s.source.Get(ctx, ids)
		cancel()
		until := time.Now().Add(settingsAge)
		for i, call := range calls {
			if call.err = err; err == nil {
				call.result = &assigned{conf: confs[i], until: until}
				s.remember(ids[i], call)
			}
			close(call.done)
		}
	}
}

func (s *settings) remember(id token.ID, call *settingsCall) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.changes != call.changes {
		return // something was forgotten meanwhile: perhaps this
	}
	if len(sh.entries) >= settingsTokens/settingsShards {
		for other := range sh.entries { // any one: the order of a map is random
			delete(sh.entries, other)
			break
		}
	}
	sh.entries[id] = call.result
}

// forget makes the next request of a token ask anew.
func (s *settings) forget(id token.ID) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.entries, id)
	sh.changes++
}

// forgetAll makes every token ask anew. What was known serves until it was.
func (s *settings) forgetAll() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for id, entry := range sh.entries { // entries are shared and never change
			sh.entries[id] = &assigned{conf: entry.conf}
		}
		sh.changes++
		sh.mu.Unlock()
	}
}

// apply returns r as it is for the token.
func (a *assigned) apply(r *Rule) *Rule {
	if !a.conf.Blocked && len(a.conf.Quotas) == 0 {
		return r
	}
	if own, ok := a.rules.Load(r); ok {
		return own.(*Rule)
	}
	own := &Rule{Policy: r.Policy, Blocked: r.Blocked || a.conf.Blocked, Limits: append(r.Limits[:0:0], r.Limits...)}
	for i := range own.Limits {
		if quota, ok := a.conf.Quotas[own.Limits[i].Name]; ok {
			own.Limits[i].Quota = quota
		}
	}
	own.announced = announce(own.Limits)
	kept, _ := a.rules.LoadOrStore(r, own)
	return kept.(*Rule)
}
