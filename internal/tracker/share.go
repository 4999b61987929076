package tracker

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/token"
)

// Share divides the tokens among the trackers that run at the same time. Whoever
// works on a token that is not its own does no harm: accounting is exact however
// many do it. Its methods are safe for concurrent use.
type Share interface {
	// Owns reports whether id is this tracker's, as far as it knows: all are
	// before the first Beat.
	Owns(id token.ID) bool
	// Beat says that this tracker lives, and reports whether the share changed.
	Beat(ctx context.Context) (changed bool, err error)
	// Leave gives the share up at once.
	Leave(ctx context.Context) error
}

const (
	// beatEvery is the pause between two beats.
	beatEvery = time.Second
	// memberTTL is how long a tracker that does not beat counts as alive.
	memberTTL = 5 * time.Second
)

//go:embed members.lua
var membersLua string

var membersScript = redis.NewScript(membersLua)

// RedisShare keeps the trackers' list in Redis: a sorted set whose scores say until
// when a tracker counts as alive, by Redis' clock. A token belongs to the tracker
// whose hash together with it is the highest, so that little changes hands when one
// comes or goes.
type RedisShare struct {
	client redis.UniversalClient
	key    string
	self   string

	mu      sync.RWMutex
	members []string // sorted; empty before the first beat
}

var _ Share = (*RedisShare)(nil)

// NewRedisShare returns the share of a tracker that has not joined yet.
func NewRedisShare(client redis.UniversalClient, namespace counters.Namespace) *RedisShare {
	if namespace == "" {
		namespace = counters.DefaultNamespace
	}
	return &RedisShare{client: client, key: MembersKey(namespace), self: rand.Text()}
}

// MembersKey is the key of the trackers' list: sorted set, members are chance,
// scores unix ms.
func MembersKey(namespace counters.Namespace) string { return "tracker:members:" + string(namespace) }

// Owns implements Share.
func (s *RedisShare) Owns(id token.ID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.members) <= 1 {
		return true
	}
	best, owner := uint64(0), ""
	for _, member := range s.members {
		if w := weight(member, id); owner == "" || w > best {
			best, owner = w, member
		}
	}
	return owner == s.self
}

func weight(member string, id token.ID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	_, _ = h.Write([]byte(member))
	// FNV's last bytes reach its high bits badly; this mixes them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// Beat implements Share.
func (s *RedisShare) Beat(ctx context.Context) (changed bool, err error) {
	members, err := membersScript.Run(ctx, s.client, []string{s.key}, s.self, memberTTL.Milliseconds()).StringSlice()
	if err != nil {
		return false, fmt.Errorf("say that this tracker lives: %w", err)
	}
	slices.Sort(members)
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = !slices.Equal(members, s.members)
	s.members = members
	return changed, nil
}

// Leave implements Share.
func (s *RedisShare) Leave(ctx context.Context) error {
	if err := s.client.ZRem(ctx, s.key, s.self).Err(); err != nil {
		return fmt.Errorf("leave the trackers' list: %w", err)
	}
	return nil
}
