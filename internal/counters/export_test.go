package counters

// Waiting is how many requests wait to be sent.
func Waiting(g *Group) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range g.open {
		n += len(b.requests)
	}
	return n
}
