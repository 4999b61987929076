package config

import (
	"bytes"
	"context"
	"errors"
	"os"
	"time"
)

// WatchEvery is how often Watch looks at the file. It reads instead of asking the
// system for notifications: that also sees files that are replaced, mounted or
// behind symbolic links, as orchestrators do it.
const WatchEvery = 2 * time.Second

// Watch looks at the file that c was loaded from, until ctx ends, and calls changed
// with what it has become: the whole new configuration, or why it is refused.
// It looks at once when nudged, and then calls changed even if nothing has. A
// configuration without a file is only loaded again when nudged.
func (c *Config) Watch(ctx context.Context, nudge <-chan struct{}, changed func(*Config, error)) error {
	tick := time.NewTicker(WatchEvery)
	defer tick.Stop()
	seen := c.source
	for {
		nudged := false
		select {
		case <-ctx.Done():
			return nil
		case <-nudge:
			nudged = true
		case <-tick.C:
		}
		now, err := os.ReadFile(c.path)
		if c.path == "" {
			err = nil
		}
		if errors.Is(err, os.ErrNotExist) && !nudged {
			continue // being replaced, or gone: what was loaded stays
		}
		if bytes.Equal(now, seen) && !nudged {
			continue
		}
		seen = now
		changed(Load(c.path, c.getenv))
	}
}
