package tracker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotifications: the server does not send the keyspace notifications that the
// tracker needs, and the tracker may not turn them on.
var ErrNotifications = errors.New("keyspace notifications are off")

const (
	notifyConfig = "notify-keyspace-events"
	notifyRemedy = `set notify-keyspace-events to "E$" or more (in redis.conf, or your provider's parameters), ` +
		`or allow the tracker's user +config|get and +config|set`
)

// missingFlags returns the flags that must be added to the value of
// notify-keyspace-events so that changes of strings are published by event.
func missingFlags(flags string) string {
	missing := ""
	if !strings.Contains(flags, "E") {
		missing += "E"
	}
	if !strings.ContainsAny(flags, "$A") {
		missing += "$"
	}
	return missing
}

// ensureNotifications makes a server publish changes of strings, leaving other
// flags as they are. Where CONFIG is refused it finds out by trying. The error
// wraps ErrNotifications if trying again will not help.
func (f *RedisFeed) ensureNotifications(ctx context.Context, node *redis.Client) error {
	config, err := node.ConfigGet(ctx, notifyConfig).Result()
	if refused(err) {
		return f.probe(ctx, node, err)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", notifyConfig, err)
	}
	flags := config[notifyConfig]
	missing := missingFlags(flags)
	switch {
	case missing == "":
		return nil
	case f.opts.KeepConfig:
		return fmt.Errorf("%w: %s is %q and lacks %q; %s", ErrNotifications, notifyConfig, flags, missing, notifyRemedy)
	}
	err = node.ConfigSet(ctx, notifyConfig, flags+missing).Err()
	switch {
	case refused(err):
		return fmt.Errorf("%w: %s is %q and lacks %q, and CONFIG SET is refused (%v); %s",
			ErrNotifications, notifyConfig, flags, missing, err, notifyRemedy)
	case err != nil:
		return fmt.Errorf("set %s: %w", notifyConfig, err)
	}
	f.opts.Log.Info("turned keyspace notifications on", "server", node.Options().Addr, "was", flags, "is", flags+missing)
	return nil
}

// refused reports whether a server refuses a command for good: to this user, or
// to all because the provider has removed it.
func refused(err error) bool {
	if err == nil {
		return false
	}
	return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "NOPERM") ||
		strings.Contains(strings.ToLower(err.Error()), "unknown command")
}

const (
	probeLimit = 2 * time.Second
	// probePrefix begins the keys with which the feed finds out whether
	// notifications arrive; they live for a second.
	probePrefix = "tracker:probe:"
)

// probe increments a key of its own and waits for the notification.
func (f *RedisFeed) probe(ctx context.Context, node *redis.Client, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	sub := node.Subscribe(ctx, f.channel(node))
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return f.subscribeError(err)
	}
	// Random, so that on a Cluster some key falls to this very node, and several
	// trackers do not take each other's for their own.
	var key string
	for {
		key = probePrefix + rand.Text()
		err := node.Incr(ctx, key).Err()
		if err == nil {
			// Not in a transaction, whose error would hide what was refused.
			if err = node.Expire(ctx, key, time.Second).Err(); err == nil {
				break
			}
		}
		if _, moved := redis.IsMovedError(err); moved && ctx.Err() == nil {
			continue
		}
		if refused(err) {
			return fmt.Errorf("%w, or not: CONFIG is refused (%v), and so is finding out by INCR %s* (%v); %s, or allow it ~%s*",
				ErrNotifications, cause, probePrefix, err, notifyRemedy, probePrefix)
		}
		return fmt.Errorf("probe for notifications: %w", err)
	}
	for {
		message, err := sub.ReceiveMessage(ctx)
		if err != nil {
			// A client with ContextTimeoutEnabled hands the deadline to its connection,
			// which may notice it before ctx does.
			if ctx.Err() != nil || os.IsTimeout(err) {
				return fmt.Errorf("%w: CONFIG is refused (%v), and a probe of %s brought none within %s; %s",
					ErrNotifications, cause, notifyConfig, probeLimit, notifyRemedy)
			}
			return fmt.Errorf("probe for notifications: %w", err)
		}
		if message.Payload == key {
			return nil
		}
	}
}

// subscribeError names what is missing when a subscription is refused.
func (f *RedisFeed) subscribeError(err error) error {
	if refused(err) {
		return fmt.Errorf("%w: the subscription is refused (%v); allow the tracker's user +subscribe and &__keyevent@*",
			ErrNotifications, err)
	}
	return fmt.Errorf("subscribe to keyspace notifications: %w", err)
}
