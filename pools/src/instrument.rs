//! Scopes for asynchronous code.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::pool::MemPool;

pin_project! {
    /// A future that is inside a pool's scope whenever it is polled, on whichever thread, and
    /// in no scope of it in between.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Instrumented<F> {
        #[pin]
        future: F,
        pool: MemPool,
    }
}

impl<F> Instrumented<F> {
    pub(crate) fn new(future: F, pool: MemPool) -> Self {
        Self { future, pool }
    }
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _scope = this.pool.enter();
        this.future.poll(context)
    }
}
