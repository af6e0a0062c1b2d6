package sandbox

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

var _ net.Conn = (*pipeConn)(nil)

func TestPipeMovesBytesBothWays(t *testing.T) {
	near, far := newPipe(hostPort("client:1"), hostPort("broker:2"))
	if near.RemoteAddr().String() != "broker:2" || far.RemoteAddr().String() != "client:1" {
		t.Errorf("remote addresses %v and %v, want broker:2 and client:1", near.RemoteAddr(), far.RemoteAddr())
	}
	want := bytes.Repeat([]byte("0123456789"), 1000)
	for _, ends := range [][2]*pipeConn{{near, far}, {far, near}} {
		sent := make(chan error, 1)
		go func() {
			_, err := ends[0].Write(want)
			sent <- err
		}()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(ends[1], got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, %v; want what was written", len(got), err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

// What is lent is not the writer's again until it is released, whatever else
// happens.
func TestPipeLentBytesHoldTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := newPipe(hostPort("a"), hostPort("b"))
		wrote := make(chan error, 1)
		go func() {
			_, err := near.Write([]byte("hello"))
			wrote <- err
		}()
		lent, err := far.lend()
		if err != nil || string(lent) != "hello" {
			t.Fatalf("lend() = %q, %v", lent, err)
		}
		_ = near.Close()
		synctest.Wait()
		select {
		case err := <-wrote:
			t.Fatalf("Write returned %v while its bytes were lent", err)
		default:
		}
		far.release()
		if err := <-wrote; err != nil {
			t.Errorf("Write = %v after all was read", err)
		}
	})
}

func TestPipePostDoesNotWait(t *testing.T) {
	near, far := newPipe(hostPort("a"), hostPort("b"))
	if err := near.post([]byte("one")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "one" {
		t.Fatalf("read %q, %v", got, err)
	}
	if err := near.post([]byte("two")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "two" {
		t.Fatalf("read %q, %v", got, err)
	}
}

func TestPipeCloseEndsBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := newPipe(hostPort("a"), hostPort("b"))
		read, wrote := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := far.Read(make([]byte, 1))
			read <- err
		}()
		go func() {
			_, err := far.Write([]byte("x"))
			wrote <- err
		}()
		synctest.Wait()
		_ = near.Close()
		if err := <-read; !errors.Is(err, io.EOF) {
			t.Errorf("Read = %v, want EOF", err)
		}
		if err := <-wrote; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write = %v, want %v", err, io.ErrClosedPipe)
		}
		if err := near.post([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("post = %v, want %v", err, io.ErrClosedPipe)
		}
	})
}

func TestPipeDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := newPipe(hostPort("a"), hostPort("b"))
		start := time.Now()
		_ = near.SetDeadline(start.Add(time.Second))
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read = %v, want a deadline error", err)
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write = %v, want a deadline error", err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %v, want 1s", waited)
		}
		_ = near.SetDeadline(time.Time{})
		go func() { _, _ = far.Write([]byte("y")) }()
		if n, err := near.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("Read = %d, %v after the deadline was lifted", n, err)
		}
	})
}
